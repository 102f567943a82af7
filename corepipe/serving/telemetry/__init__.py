"""What is measured, and under which names it is told."""
