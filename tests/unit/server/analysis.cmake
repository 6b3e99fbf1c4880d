scalelab_test(analysis_test LABEL unit SOURCES analysis_communication_test.cc analysis_curve_test.cc analysis_downsample_test.cc analysis_fits_test.cc
              analysis_statistics_test.cc analysis_training_test.cc LIBS scalelab_analysis)
scalelab_test(analysis_coverage_test LABEL unit TIMEOUT 120 SOURCES analysis_coverage_test.cc LIBS scalelab_analysis)
