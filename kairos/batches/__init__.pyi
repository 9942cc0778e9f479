from .batch_input import check_input as check_input
from .batch_input import placed_lines as placed_lines
from .batch_input import read_line as read_line
from .batches_on import BatchesOn as BatchesOn
from .service import batch_figures as batch_figures
from .service import serving_batches as serving_batches
