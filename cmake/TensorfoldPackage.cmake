# What a release holds: the program, its manual page and its completions, all made from the program itself. `cpack` packs
# them into tensorfold-VERSION-PLATFORM.tar.gz; scripts/pack-release signs it and writes the release list.

install(TARGETS tensorfold RUNTIME DESTINATION bin)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/tensorfold)
install(CODE "
  function(generate path)
    file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\")
    get_filename_component(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/\${path}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:tensorfold>\" \${ARGN}
      OUTPUT_FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/\${path}\" COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  generate(man/man1/tensorfold.1 manual)
  generate(bash-completion/completions/tensorfold completions bash)
  generate(zsh/site-functions/_tensorfold completions zsh)
  generate(fish/vendor_completions.d/tensorfold.fish completions fish)
")

string(TOLOWER ${CMAKE_SYSTEM_NAME} TENSORFOLD_SYSTEM)
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME tensorfold-${PROJECT_VERSION}-${TENSORFOLD_SYSTEM}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
include(CPack)
