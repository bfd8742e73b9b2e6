# The Python to build for, and pybind11 from that Python's packages (it is a build requirement in pyproject.toml).

set(venv_python "${PROJECT_SOURCE_DIR}/.venv/bin/python")
if(NOT Python_EXECUTABLE AND EXISTS "${venv_python}")
  set(Python_EXECUTABLE "${venv_python}" CACHE FILEPATH "Python to build for")
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

if(NOT pybind11_DIR OR NOT EXISTS "${pybind11_DIR}")
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
    OUTPUT_VARIABLE found_pybind11_dir OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE found ERROR_QUIET)
  if(NOT found EQUAL 0)
    message(FATAL_ERROR "pybind11 is not installed for ${Python_EXECUTABLE}: run `make setup`, "
                        "or set SMON_RT_BUILD_PYTHON=OFF")
  endif()
  set(pybind11_DIR "${found_pybind11_dir}" CACHE PATH "pybind11's CMake files" FORCE)
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 CONFIG REQUIRED)
