scalelab_test(client_printer_contract_test LABEL contract
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/client_printer_contract_test.cc LIBS scalelab_client nlohmann_json::nlohmann_json)
