"""The scheduler or the server of mxnet/kvstore: `python -m scalelab.mxnet_helper ROLE`, with DMLC_* in the environment.

It serves until it is killed. An error of the optimizer ends it: MXNet would go on with the weights as they are.
"""
import os
import sys
import traceback


def _end(failure):
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


def main(role):
    sys.unraisablehook = _end  # where exceptions go that Python code called from C raises
    # Imported as a worker, as the import would begin to serve, with half of the module still missing.
    os.environ["DMLC_ROLE"] = "worker"
    import mxnet.kvstore.kvstore_server as server

    os.environ["DMLC_ROLE"] = role
    server._init_kvstore_server_module()


if __name__ == "__main__":
    main(sys.argv[1])
