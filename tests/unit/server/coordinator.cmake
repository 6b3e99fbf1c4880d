scalelab_test(server_lifecycle_test LABEL unit SOURCES lifecycle_test.cc outcome_test.cc ingest_test.cc LIBS scalelab_coordinator)
scalelab_test(server_fair_queue_test LABEL unit SOURCES fair_queue_test.cc LIBS scalelab_coordinator)
scalelab_test(server_coordinator_test LABEL unit SOURCES coordinator_test.cc LIBS scalelab_coordinator)
scalelab_test(server_rpc_test LABEL unit SOURCES rpc_server_test.cc LIBS scalelab_server)
