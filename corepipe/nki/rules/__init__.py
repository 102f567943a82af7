"""The rules of the device by generation, as a table, and the memory that a kernel takes."""
