"""The instructions of a NeuronCore, destination first: checks, values and what the recorder keeps."""
