# Writes a C++ file with the text of core/device/kernels/all.h and of all headers of the core that it includes: the
# library carries what NVRTC compiles at run time.
#
#   embed_kernels(<folder of the core> <C++ file>)

# Appends a header to the list `out`, after the headers that it includes; each once.
function(collect_headers core header out)
  set(found ${${out}})
  if(header IN_LIST found)
    return()
  endif()
  file(STRINGS "${core}/${header}" includes REGEX "^#include \"")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" name "${include}")
    collect_headers("${core}" "${name}" found)
  endforeach()
  list(APPEND found ${header})
  set(${out} ${found} PARENT_SCOPE)
endfunction()

function(embed_kernels core target)
  set(headers)
  collect_headers("${core}" device/kernels/all.h headers)
  set(files "")
  foreach(header IN LISTS headers)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${core}/${header}")
    file(READ "${core}/${header}" text)
    string(APPEND files "    {\"${header}\", R\"__text__(${text})__text__\"},\n")
  endforeach()
  # The file changes, and is compiled again, only if its content does.
  file(CONFIGURE OUTPUT "${target}" @ONLY CONTENT
"// Made by CMake (cmake/embed_kernels.cmake).
#include \"device/source_file.h\"

namespace monolith::device {
namespace {

constexpr SourceFile kFiles[] = {
@files@};

}  // namespace

const std::span<const SourceFile> kKernelHeaders = kFiles;

}  // namespace monolith::device
")
endfunction()
