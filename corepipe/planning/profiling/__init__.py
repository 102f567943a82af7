"""The timeline of a few steps, Op by Op."""
