"""What the commands do: imported when one is run, so that flags and help are quick."""
