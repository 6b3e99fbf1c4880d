scalelab_test(store_contract LABEL contract SOURCES store_access_test.cc store_archive_test.cc store_contract_test.cc store_maintenance_test.cc
              store_outbox_test.cc store_points_test.cc store_retention_test.cc
              LIBS scalelab_db scalelab_db_archive scalelab_db_outbox scalelab_db_retention scalelab_db_study_files OpenSSL::Crypto zstd)
scalelab_test(store_crash LABEL contract TIMEOUT 120 SOURCES store_crash_test.cc store_removal_crash_test.cc store_restore_crash_test.cc
              LIBS scalelab_db scalelab_db_archive scalelab_db_retention)
