# Scheduler: one suite for every kind.
include(${PROJECT_SOURCE_DIR}/tests/fakes/local_cluster.cmake)
scalelab_test(scheduler_contract_test LABEL contract SOURCES ${CMAKE_CURRENT_LIST_DIR}/scheduler_contract_test.cc
  LIBS scalelab_local_cluster)
