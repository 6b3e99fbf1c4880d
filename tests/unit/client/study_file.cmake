scalelab_test(study_file_test LABEL unit SOURCES study_file_test.cc study_file_errors_test.cc time_limit_test.cc
  LIBS scalelab_study_file)
target_compile_definitions(study_file_test PRIVATE STUDIES="${PROJECT_SOURCE_DIR}/deploy/studies")
