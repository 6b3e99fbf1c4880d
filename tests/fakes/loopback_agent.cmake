# An agent in this process.
include_guard(GLOBAL)
scalelab_library(scalelab_loopback_agent ${CMAKE_CURRENT_LIST_DIR}/loopback_agent.cc)
target_link_libraries(scalelab_loopback_agent PUBLIC scalelab_agent scalelab_server_scheduler_agent
  PRIVATE scalelab_server_services)
