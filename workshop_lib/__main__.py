from workshop_lib.cli import main

main()
