"""NKI: kernels in AWS's kernel language, run and timed without a device."""
