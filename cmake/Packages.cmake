# What `cmake --install` installs, by component, and the Debian packages that deploy/package makes of the components.
# Files that only a Debian package has are EXCLUDE_FROM_ALL: `cmake --install` without --component leaves them out.
set(SCALELAB_PACKAGE_REVISION 1 CACHE STRING "Revision of the Debian packages of one version of scalelab")
set(SCALELAB_MAINTAINER "scalelab maintainers <scalelab@lists.scalelab.org>" CACHE STRING "Maintainer that the Debian packages name")
set(packages ${PROJECT_SOURCE_DIR}/deploy/packages)
set(share ${CMAKE_INSTALL_DATADIR}/scalelab)

# Programs. catalog/installation.h finds those that no user starts, and the adapters.
install(TARGETS scalelab RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT client)
install(TARGETS scalelabd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)
install(TARGETS scalelab-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
install(TARGETS scalelab-rank RUNTIME DESTINATION lib/scalelab COMPONENT worker)
if(TARGET scalelab-trainer)
  install(TARGETS scalelab-trainer RUNTIME DESTINATION lib/scalelab COMPONENT worker)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/scalelab/unused DESTINATION lib/scalelab COMPONENT worker)
endif()
install(DIRECTORY worker/adapters/ DESTINATION ${share}/adapters COMPONENT worker
  FILES_MATCHING PATTERN "*.py" PATTERN "*.json" PATTERN tests EXCLUDE PATTERN __pycache__ EXCLUDE)
install(PROGRAMS deploy/frameworks DESTINATION ${share}/deploy COMPONENT worker)
install(FILES deploy/phase.sh deploy/cuda_check.py DESTINATION ${share}/deploy COMPONENT worker)
install(DIRECTORY deploy/requirements DESTINATION ${share}/deploy COMPONENT worker FILES_MATCHING PATTERN "*.txt")
# For editors of study files.
install(FILES deploy/schema/study.schema.json DESTINATION ${share} COMPONENT client)
# For Prometheus and Grafana.
install(FILES deploy/prometheus/alerts.yaml DESTINATION ${share} COMPONENT server)
install(FILES deploy/grafana/scalelab.json DESTINATION ${share} RENAME grafana-dashboard.json COMPONENT server)

# Completion scripts, which the program writes itself.
set(completions ${CMAKE_BINARY_DIR}/share/completions)
add_custom_command(OUTPUT ${completions}/scalelab ${completions}/scalelab.fish ${completions}/_scalelab
  COMMAND ${CMAKE_COMMAND} -E make_directory ${completions}
  COMMAND scalelab completion bash > ${completions}/scalelab
  COMMAND scalelab completion fish > ${completions}/scalelab.fish
  COMMAND scalelab completion zsh > ${completions}/_scalelab
  DEPENDS scalelab VERBATIM)
add_custom_target(scalelab-completions ALL
  DEPENDS ${completions}/scalelab ${completions}/scalelab.fish ${completions}/_scalelab)
install(FILES ${completions}/scalelab DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT client)
install(FILES ${completions}/scalelab.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT client)
install(FILES ${completions}/_scalelab DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT client)

# The wheel of the Python client, which users install with pip into a virtual environment. The target runs each time, because only
# setuptools knows which files the wheel contains.
set(wheel ${CMAKE_BINARY_DIR}/packages/python/scalelab-${PROJECT_VERSION}-py3-none-any.whl)
add_custom_target(scalelab-wheel
  COMMAND ${PROJECT_SOURCE_DIR}/deploy/python-client --dir ${CMAKE_BINARY_DIR}/packages/python
  BYPRODUCTS ${wheel} VERBATIM)
install(FILES ${wheel} DESTINATION ${share}/python COMPONENT client EXCLUDE_FROM_ALL)

# Documentation; manual/ adds the man pages.
set(doc ${CMAKE_INSTALL_DATADIR}/doc/scalelab-doc)
install(DIRECTORY docs DESTINATION ${doc} COMPONENT doc)
# Files that have the same place relative to docs as in the source tree, because the documents contain links to them.
foreach(file
    README.md CHANGELOG.md CONTRIBUTING.md LICENSE client/README.md client/bundle/README.md client/figures/README.md
    client/python/README.md db/README.md db/archive/README.md db/retention/README.md deploy/README.md deploy/packages/README.md
    deploy/systemd/scalelab-agent.service server/curves/README.md server/runs/README.md server/services/README.md study/README.md
    tests/README.md tests/bench/README.md worker/adapters/README.md)
  get_filename_component(folder ${file} DIRECTORY)
  install(FILES ${file} DESTINATION ${doc}/${folder} COMPONENT doc)
endforeach()
install(DIRECTORY tests/e2e/journeys DESTINATION ${doc}/tests/e2e COMPONENT doc)
# The examples name the images as ../data. Links in the documents lead to deploy/studies and deploy/data.
install(DIRECTORY deploy/studies/ DESTINATION ${doc}/examples COMPONENT doc)
install(DIRECTORY deploy/data DESTINATION ${doc} COMPONENT doc)
install(CODE "
  set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${doc}/deploy\")
  file(CREATE_LINK ../examples \"\${folder}/studies\" SYMBOLIC)
  file(CREATE_LINK ../data \"\${folder}/data\" SYMBOLIC)" COMPONENT doc)
install(FILES deploy/nginx/scalelab.conf deploy/nginx/scalelab.nft DESTINATION ${doc}/examples/nginx COMPONENT doc)

# The service of a Debian system.
install(FILES deploy/systemd/scalelabd.service deploy/systemd/scalelabd-backup.service deploy/systemd/scalelabd-backup.timer
  DESTINATION lib/systemd/system COMPONENT server EXCLUDE_FROM_ALL)
install(PROGRAMS deploy/systemd/remove-old-backups DESTINATION lib/scalelab COMPONENT server EXCLUDE_FROM_ALL)
install(FILES deploy/systemd/scalelab-agent.service DESTINATION lib/systemd/user COMPONENT client EXCLUDE_FROM_ALL)
install(FILES ${packages}/scalelabd.yaml DESTINATION /etc/scalelab COMPONENT server EXCLUDE_FROM_ALL)
install(FILES ${packages}/client-config DESTINATION /etc/xdg/scalelab RENAME config COMPONENT server EXCLUDE_FROM_ALL)

# What Debian's policy requires of every package.
execute_process(COMMAND git log -1 --format=%cd --date=rfc WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  OUTPUT_VARIABLE package_date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE git_failed)
if(git_failed)
  string(TIMESTAMP package_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()
find_program(GZIP gzip REQUIRED)
configure_file(CHANGELOG.md ${CMAKE_BINARY_DIR}/packages/changelog COPYONLY)
execute_process(COMMAND ${GZIP} -9nkf ${CMAKE_BINARY_DIR}/packages/changelog COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${CMAKE_BINARY_DIR}/packages/changelog.gz DESTINATION ${doc} COMPONENT doc)
foreach(component client server worker doc)
  set(package scalelab-${component})
  set(made ${CMAKE_BINARY_DIR}/packages/${component})
  configure_file(${packages}/changelog.in ${made}/changelog.Debian @ONLY)
  execute_process(COMMAND ${GZIP} -9nkf ${made}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${made}/changelog.Debian.gz ${packages}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(FILES ${packages}/${component}.lintian-overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides
    RENAME ${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME scalelab)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGE_CONTACT "${SCALELAB_MAINTAINER}")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE ${SCALELAB_PACKAGE_REVISION})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON)  # /etc is not below the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL client server worker doc)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)

set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION science)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "measure how distributed training scales: command line
Submits studies of distributed training to a scalelab server, follows them and
shows scaling curves with confidence intervals.")
# librsvg2-bin and librsvg2-2 take 17 MB, more than the client itself, and need cairo and pango. Therefore the package only suggests
# it, and scalelab names it when a PDF or PNG file needs it.
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS "libmunge2, librsvg2-bin, python3-venv, scalelab-doc")

set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION science)
set(CPACK_COMPONENT_SERVER_DESCRIPTION "measure how distributed training scales: coordinator
Queues the studies of a lab, gets nodes from Slurm or from this machine, and
stores what the training processes measure.")
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS "scalelab-worker, scalelab-client")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "libmunge2, nginx-light, slurm-client, scalelab-doc")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/packages/control/conffiles
  ${CMAKE_BINARY_DIR}/packages/control/preinst ${CMAKE_BINARY_DIR}/packages/control/postinst
  ${CMAKE_BINARY_DIR}/packages/control/prerm ${CMAKE_BINARY_DIR}/packages/control/postrm)
foreach(script conffiles preinst postinst prerm postrm)
  configure_file(${packages}/server.${script} ${CMAKE_BINARY_DIR}/packages/control/${script} COPYONLY)
endforeach()

set(CPACK_DEBIAN_WORKER_PACKAGE_SECTION science)
set(CPACK_COMPONENT_WORKER_DESCRIPTION "measure how distributed training scales: programs of the nodes
Runs training processes on the nodes of a cluster for a scalelab server: with
its own trainer, which uses LibTorch, or with Python frameworks.")
set(CPACK_DEBIAN_WORKER_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_WORKER_PACKAGE_RECOMMENDS "libopenblas0-pthread, python3")
set(CPACK_DEBIAN_WORKER_PACKAGE_SUGGESTS "python3-venv, python3-pip")

set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOC_PACKAGE_SHLIBDEPS OFF)
set(CPACK_COMPONENT_DOC_DESCRIPTION "measure how distributed training scales: documentation
Man pages, guides for users and operators, and examples of studies.")

# Installing needs only what the packages contain, so `preinstall` does not build the tests.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
add_custom_target(scalelab-package-files DEPENDS scalelab scalelabd scalelab-worker scalelab-rank)
add_dependencies(scalelab-package-files scalelab-completions scalelab-man-pages scalelab-wheel)
if(TARGET scalelab-trainer)
  add_dependencies(scalelab-package-files scalelab-trainer)
endif()
include(CPack)
