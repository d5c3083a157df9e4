/* build.h - which cairn is running, and where its shared objects lie. */
#ifndef CAIRN_BASE_BUILD_H
#define CAIRN_BASE_BUILD_H

const char *cairn_build_version(void); /* `git describe` of the build, or "unknown" */
/* The directory that holds bin/ and lib/ of the running program, two above its file (build/bin/cairn and
 * build/tests/x -> build). Absolute; lives as long as the process; NULL if /proc does not tell. */
const char *cairn_install_dir(void);
/* malloc'ed "<install>/lib/<name>", or "$CAIRN_LIB_DIR/<name>" where that variable is set. NULL without memory or
 * without an install directory. Whether the file is there is not asked. */
char *cairn_lib_path(const char *name);

#endif
