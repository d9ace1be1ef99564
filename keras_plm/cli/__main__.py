"""`python -m keras_plm.cli`: the console command `keras-plm`, for `torchrun -m`."""

import sys

from keras_plm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
