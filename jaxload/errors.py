"""What a user can fix, told in one line."""


class InputError(ValueError):
    """Something the user gave is wrong: a config, a data set, a work directory.

    The message names the thing, what was expected, what was found and what to do.
    Commands print it alone and exit with code 2; any other exception is a bug of ours
    and keeps its traceback.
    """
