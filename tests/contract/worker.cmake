# Runs the Framework contract against every implementation.
scalelab_test(framework_contract_test LABEL contract SOURCES framework_contract_test.cc LIBS scalelab_worker scalelab_catalog)
