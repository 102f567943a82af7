"""Images, and what models read of them: made ready as a checkpoint's files say, in a process with bounds."""
