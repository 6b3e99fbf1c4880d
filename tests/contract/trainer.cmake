# Communicator: one suite, in one process and over real MPI processes. Strategy: one suite over all native engines.
if(SCALELAB_TRAINER)
  scalelab_test(communicator_contract_test LABEL contract TORCH TIMEOUT 300 INPUTS ${scalelab_trainer_inputs}
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/communicator_contract_test.cc LIBS scalelab_worker_trainer_comm)
  scalelab_use_torch_header(communicator_contract_test)

  scalelab_test(strategy_contract_test LABEL contract TORCH TIMEOUT 300 INPUTS ${scalelab_trainer_inputs}
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/strategy_contract_test.cc LIBS scalelab_worker_trainer_optim scalelab_worker_trainer_strategies)
  scalelab_use_torch_header(strategy_contract_test)

  add_executable(process_communicator_contract_test ${CMAKE_CURRENT_LIST_DIR}/process_communicator_contract_test.cc)
  target_include_directories(process_communicator_contract_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(process_communicator_contract_test PRIVATE scalelab_worker_trainer_backends GTest::gtest scalelab_warnings)
  scalelab_use_torch_header(process_communicator_contract_test)
  set_target_properties(process_communicator_contract_test PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  function(scalelab_process_contract backend ranks)
    set(name ProcessCommunicatorContract.${backend}_${ranks}_ranks)
    if(ARGN)
      set(name ${name}_${ARGN})
    endif()
    set(unless_passed "")
    if(NOT ARGN AND NOT backend STREQUAL nccl)
      scalelab_unless_passed(unless_passed)
    endif()
    add_test(NAME ${name}
      COMMAND ${unless_passed} ${MPIEXEC_EXECUTABLE} -np ${ranks} --oversubscribe --allow-run-as-root
              $<TARGET_FILE:process_communicator_contract_test> ${ranks} ${backend} ${ARGN})
    set_tests_properties(${name} PROPERTIES LABELS contract TIMEOUT 120 SKIP_RETURN_CODE 77
      ENVIRONMENT "OMP_NUM_THREADS=1;SCALELAB_SHARED_GPU=1;OMPI_MCA_rmaps_base_oversubscribe=1;SCALELAB_ATTEMPT_DIR=${CMAKE_BINARY_DIR}/tests/${name}"
      ENVIRONMENT_MODIFICATION "${scalelab_mpi_environment}")
    if("cuda" IN_LIST ARGN)
      set_property(TEST ${name} APPEND PROPERTY LABELS gpu)
    endif()
  endfunction()
  foreach(backend mpi gloo)
    if(backend STREQUAL gloo AND NOT SCALELAB_GLOO)
      continue()
    endif()
    foreach(ranks 1 2 3 4 7)
      scalelab_process_contract(${backend} ${ranks})
    endforeach()
    # Ranks of these may share a GPU.
    scalelab_process_contract(${backend} 2 cuda)
  endforeach()
  foreach(ranks 1 2 4)
    scalelab_process_contract(nccl ${ranks})
    scalelab_process_contract(nccl ${ranks} cuda)
  endforeach()

  # All synchronous engines over real backends, in four processes for all cases.
  add_executable(parity_process_test ${CMAKE_CURRENT_LIST_DIR}/parity_process_test.cc)
  target_include_directories(parity_process_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(parity_process_test PRIVATE scalelab_worker_trainer_loop GTest::gtest scalelab_warnings)
  scalelab_use_torch_header(parity_process_test)
  set_target_properties(parity_process_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  scalelab_unless_passed(unless_passed ${scalelab_trainer_inputs})
  add_test(NAME Parity.OfEveryEngineOverEveryBackend
    COMMAND ${unless_passed} ${MPIEXEC_EXECUTABLE} -np 4 --oversubscribe --allow-run-as-root $<TARGET_FILE:parity_process_test>)
  set_tests_properties(Parity.OfEveryEngineOverEveryBackend PROPERTIES LABELS contract TIMEOUT 300
    ENVIRONMENT "OMP_NUM_THREADS=1;OMPI_MCA_rmaps_base_oversubscribe=1;SCALELAB_ATTEMPT_DIR=${CMAKE_BINARY_DIR}/tests/Parity"
    ENVIRONMENT_MODIFICATION "${scalelab_mpi_environment}")
endif()
