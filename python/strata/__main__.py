"""`python -m strata`."""

import signal

# While libraries are loaded, an interrupt ends the process without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from .main import end_on_signals, main  # noqa: E402

end_on_signals()
main()
