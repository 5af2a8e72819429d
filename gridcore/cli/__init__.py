"""The command line: one file a verb. Imports stay inside the commands, so that help is quick."""
