"""Errors that a user can fix, reported in one line."""


class InputError(ValueError):
    """Invalid input, such as a config, a dataset or a work directory.

    The message names the input, what was expected, what was found and what to do.
    Commands print only the message and exit with code 2. Any other exception is a bug
    in jaxload and keeps its traceback.
    """
