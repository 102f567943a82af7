"""Images: decoded and preprocessed as a checkpoint says, in a process with limits."""
