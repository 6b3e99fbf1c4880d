# Generates image files for tests.
include_guard(GLOBAL)
scalelab_library(scalelab_fake_images ${CMAKE_CURRENT_LIST_DIR}/image_folder.cc)
target_link_libraries(scalelab_fake_images PUBLIC scalelab_catalog_images PRIVATE JPEG::JPEG PNG::PNG)
