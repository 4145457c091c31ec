"""The command line: one command, a subcommand for each thing a person does."""
