from .run_engines import serve_engines as serve_engines
