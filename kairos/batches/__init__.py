"""OpenAI's files and batches: uploads, their lines as calls of low priority, results and errors.

A line counts once it is durable; kills of any process lose none and repeat none.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
