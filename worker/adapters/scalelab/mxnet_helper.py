"""The scheduler or the server of mxnet/kvstore: `python -m scalelab.mxnet_helper ROLE`, with DMLC_* in the environment.

The process runs until it is killed. An error in the optimizer ends the process, because MXNet would continue without updating the
weights.
"""
import os
import sys
import traceback


def _end(failure):
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


def main(role):
    sys.unraisablehook = _end  # called for exceptions in Python code that C code has called
    # Import with role "worker". With another role, the import would start the server before the module is complete.
    os.environ["DMLC_ROLE"] = "worker"
    import mxnet.kvstore.kvstore_server as server

    os.environ["DMLC_ROLE"] = role
    server._init_kvstore_server_module()


if __name__ == "__main__":
    main(sys.argv[1])
