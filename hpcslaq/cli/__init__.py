"""The command line: click commands and rich output, no logic of their own."""
