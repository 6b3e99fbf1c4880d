scalelab_test(store_contract LABEL contract SOURCES store_contract_test.cc store_maintenance_test.cc
              store_points_test.cc LIBS scalelab_db)
scalelab_test(store_crash LABEL contract TIMEOUT 120 SOURCES store_crash_test.cc LIBS scalelab_db)
