"""Profiles: the timeline of a few steps, Op by Op."""
