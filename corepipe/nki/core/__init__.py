"""The core of NKI: tensors and their views, index tiles, instructions and the recorder of a run."""
