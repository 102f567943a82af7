"""The reference executor: runs Programs in numpy, slowly and plainly; the kernels are measured against it."""
