#include "test/support/run_tests.h"

int main(int argc, char** argv) {
  return ddp::test::run_tests(argc, argv);
}
