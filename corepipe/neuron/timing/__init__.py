"""Times: how long the steps of Programs take on the emulated device, and what that costs."""
