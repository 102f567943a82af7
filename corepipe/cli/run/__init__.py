"""The work of the commands, imported when one is run, so that flags and help are quick."""
