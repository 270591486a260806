"""The parts of commands: options, inputs, tables, pictures, progress."""
