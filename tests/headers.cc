// Nothing but what CMakeLists.txt puts before every test.
