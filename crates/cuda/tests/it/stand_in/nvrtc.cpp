// A run-time compiler whose machine code is the path of a library of the host's: emulate.h (BALLAST_STAND_IN_HEADER) before the text,
// and the C++ compiler that BALLAST_STAND_IN_COMPILER names with its options. Libraries are kept in BALLAST_STAND_IN_LIBRARIES, where the emulation
// of the tests keeps its own, by the same names.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "device.h"

struct Program {
  std::string text, name, image, log;
};

static std::string variable(const char* name) {
  const char* text = std::getenv(name);
  if (!text) wrong(name);
  return text;
}

// Fowler, Noll and Vo's hash, 1a.
static uint64_t hash_of(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

CALL nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 99, DONE; }
static const int KNOWN_ARCHITECTURES[] = {75, 80, 86, 89, 90};
CALL nvrtcGetNumSupportedArchs(int* count) { return *count = 5, DONE; }
CALL nvrtcGetSupportedArchs(int* all) { return std::memcpy(all, KNOWN_ARCHITECTURES, sizeof KNOWN_ARCHITECTURES), DONE; }

CALL nvrtcCreateProgram(Program** program, const char* text, const char* name, int headers, const char* const*, const char* const*) {
  std::string module = name;
  if (headers != 0 || module.size() < 4 || module.substr(module.size() - 3) != ".cu") return 3;
  return *program = new Program{text, module.substr(0, module.size() - 3), "", ""}, DONE;
}

CALL nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  std::ifstream header(variable("BALLAST_STAND_IN_HEADER"));
  std::stringstream text;
  text << header.rdbuf() << '\n' << program->text;
  std::string defines;
  for (int i = 0; i < count; i++)
    if (std::string(options[i]).compare(0, 2, "-D") == 0) defines += std::string(" ") + options[i];
  std::string compiler = variable("BALLAST_STAND_IN_COMPILER"), options_of_all = compiler.substr(compiler.find(' '));
  char key[17];
  std::snprintf(key, sizeof key, "%016llx", (unsigned long long)hash_of(text.str() + defines + options_of_all));
  std::string base = variable("BALLAST_STAND_IN_LIBRARIES") + "/" + program->name + "-" + key;
  if (access((base + ".so").c_str(), R_OK) != 0) {
    // Others may be at the same.
    static std::atomic<int> made{0};
    std::string partial = base + "." + std::to_string(getpid()) + "-" + std::to_string(++made), source = partial + ".cpp";
    std::ofstream(source) << program->text;
    std::string include = std::string(" -include '") + variable("BALLAST_STAND_IN_HEADER") + "'";
    std::string command = compiler + defines + include + " '" + source + "' -o '" + partial + "'";
    if (std::system(command.c_str()) != 0) return program->log = command, 6;
    std::rename(partial.c_str(), (base + ".so").c_str());
    std::remove(source.c_str());
  }
  return program->image = "emulated:" + base + ".so", DONE;
}

CALL nvrtcGetProgramLogSize(Program* program, size_t* bytes) { return *bytes = program->log.size() + 1, DONE; }
CALL nvrtcGetProgramLog(Program* program, char* log) { return std::memcpy(log, program->log.c_str(), program->log.size() + 1), DONE; }
CALL nvrtcGetCUBINSize(Program* program, size_t* bytes) { return *bytes = program->image.size() + 1, DONE; }
CALL nvrtcGetCUBIN(Program* program, char* image) { return std::memcpy(image, program->image.c_str(), program->image.size() + 1), DONE; }
CALL nvrtcGetPTXSize(Program* program, size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
CALL nvrtcGetPTX(Program* program, char* text) { return nvrtcGetCUBIN(program, text); }
CALL nvrtcDestroyProgram(Program** program) { return delete *program, *program = nullptr, DONE; }
extern "C" const char* nvrtcGetErrorString(int) { return "the stand-in's compiler failed"; }
