"""The legacy dialect, `neuronxcc.nki`: masks, index tiles, block axes and results that are returned."""
