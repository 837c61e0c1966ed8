"""The same choice on every rank: what each rank was told to launch with, written as it happens and compared later.

Standard library only: training jobs import it through :mod:`warpplan.service.client`.
"""

EXPORTS = {
    "choice_agreement": ("*",),
    "choice_files": ("agreed_text", "read_records"),
    "choice_record": ("ChoiceDiffers", "ChoiceRecord"),
}
