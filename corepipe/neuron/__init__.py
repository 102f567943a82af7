"""The emulated device: graphs, Programs, the chips, the executors and the cost model."""
