# The commands of this project; CMake does the work. `make demo` and `make check` install what they need.
#
#   make            build into build/            make tidy     clang-tidy over src/
#   make demo       a video through three        make format   clang-format over the tree
#                   processes (VIDEO=file)       make bench    measure against the floors
#   make check      all tests, three builds      make install  to PREFIX (/usr/local), DESTDIR
#   make asan       tests under ASan and UBSan   make clean    remove the build folders
#   make tsan       races under TSan             make fuzz     each parser FUZZ_SECONDS (60) long
#   make soak       tests at full size, hours
BUILD ?= build
PREFIX ?= /usr/local
export BUILD

.PHONY: build demo check asan tsan fuzz soak tidy format bench install clean

build:
	@scripts/setup.sh build
	@scripts/build.sh $(BUILD)

# With an option the folder is configured again: what was missing before may be there now.
demo:
	@scripts/setup.sh build demo
	@scripts/build.sh $(BUILD) -DTB_BUILD_EXAMPLES=ON
	@scripts/demo.sh

check:
	@scripts/setup.sh build test demo python
	@scripts/check.sh plain model asan tsan python

asan:
	@scripts/setup.sh build test
	@scripts/check.sh asan

tsan:
	@scripts/setup.sh build test
	@scripts/check.sh tsan

soak:
	@scripts/setup.sh build test
	@scripts/check.sh soak

fuzz:
	@scripts/setup.sh build test fuzz
	@scripts/fuzz.sh

tidy:
	@scripts/setup.sh build test tidy
	@scripts/build.sh $(BUILD)
	@scripts/tidy.sh $(BUILD)

format:
	@scripts/setup.sh tidy
	@git ls-files -z '*.c' '*.h' '*.cpp' | xargs -0 clang-format -i

bench: build
	@$(BUILD)/bin/tensorbus bench local

# PREFIX is where it will be used, so a build for another prefix is configured again.
install:
	@scripts/setup.sh build
	@scripts/build.sh $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	@cmake --install $(BUILD)

clean:
	@rm -rf $(BUILD) build-asan build-tsan build-fuzz
