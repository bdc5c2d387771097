"""Form of a run's micro-batches: by length or by grid."""

from typing import Literal

from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.models import family_of


def form_of(config: Config) -> Literal["length", "grid"]:
    """Returns the form that `balance.form` names, or else that of the family.

    Raises:
        InputError: The family takes no rows of different grids.
    """
    family, form = family_of(config.model), config.balance.form
    if form == "length" and family.form == "grid":
        raise InputError(
            f"balance.form=length: models of the family {family.name!r} take only "
            "samples of one grid; set balance.form=grid or auto"
        )
    return family.form if form == "auto" else form
