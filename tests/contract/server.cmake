# Scheduler: one suite for every kind.
include(${PROJECT_SOURCE_DIR}/tests/fakes/local_cluster.cmake)
include(${PROJECT_SOURCE_DIR}/tests/fakes/slurm_standins.cmake)
include(${PROJECT_SOURCE_DIR}/tests/fakes/loopback_agent.cmake)
scalelab_test(scheduler_contract_test LABEL contract SOURCES ${CMAKE_CURRENT_LIST_DIR}/scheduler_contract_test.cc
  LIBS scalelab_local_cluster scalelab_slurm_standins scalelab_loopback_agent)
# What the Slurm scheduler makes of a Slurm that lies.
scalelab_test(slurm_standins_test LABEL contract SOURCES ${CMAKE_CURRENT_LIST_DIR}/slurm_standins_test.cc
  LIBS scalelab_slurm_standins)
# What becomes of jobs when the agents of their users fail.
scalelab_test(agent_scheduler_test LABEL contract TIMEOUT 180 SOURCES ${CMAKE_CURRENT_LIST_DIR}/agent_scheduler_test.cc
  LIBS scalelab_slurm_standins scalelab_loopback_agent)
