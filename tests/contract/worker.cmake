# Every implementation of Framework keeps the same promises.
scalelab_test(framework_contract_test LABEL contract SOURCES framework_contract_test.cc LIBS scalelab_worker)
